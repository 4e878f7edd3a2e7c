"""What clients receive, as structs. Renderers build these objects by hand where speed asks for it; tests compare."""
