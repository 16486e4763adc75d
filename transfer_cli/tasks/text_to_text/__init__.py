"""Text to text: a text is made from another, by one backbone that reads and writes."""
