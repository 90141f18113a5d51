"""Reports: the JSON document of a plan, and text and Markdown rendered from it."""
