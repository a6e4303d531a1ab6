"""What the readers of Office Open XML share: packages of parts, drawings, equations, numbers, symbols."""
