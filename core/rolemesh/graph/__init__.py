"""From a flow to a logical graph, routes and schedules: pure functions, without processes."""
