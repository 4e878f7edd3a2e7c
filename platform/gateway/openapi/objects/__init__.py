"""What clients receive, as structs. Renderers build the same objects their own, faster way; tests compare."""
