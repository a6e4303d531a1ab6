"""What a stack costs that has nothing to do."""
