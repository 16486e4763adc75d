"""Classification by a word in a gap: a pattern, words for labels, a language-model head."""
