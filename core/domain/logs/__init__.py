"""Lines of SGLang's log as typed records, found by their words, and what they tell lately."""
