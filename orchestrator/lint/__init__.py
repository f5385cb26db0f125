"""The linter: readers of files, and the judgement of what they find by the table. Text in, findings out."""
