"""SQL aggregate expressions: parsed, split into a partial and a final half, evaluated."""
