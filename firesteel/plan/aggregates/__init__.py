"""SQL aggregate expressions: parses them, splits them into a partial and a final half, evaluates
them.
"""
