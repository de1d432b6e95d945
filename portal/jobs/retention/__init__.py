"""Rules that remove what ended jobs left after so many days, with a preview of what they would remove."""
