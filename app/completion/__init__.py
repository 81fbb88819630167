"""From a request to jobs, and from events to choices. Knows OpenAI's words, no HTTP."""
