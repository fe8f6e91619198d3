"""What running costs: schedules and tiles of an op on a target, layouts, and cheapest labellings.

Owns the plan of an op, the cost models and the candidates of tuning. Must not change a graph.
"""
