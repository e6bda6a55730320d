"""From stored rows to numbers: statistics, verdicts, tables and causes. No words, no layout."""
