"""Hours of mixed load with processes killed at random, judged by what a caller can see."""
