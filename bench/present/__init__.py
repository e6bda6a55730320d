"""From numbers to what people read: sentences, tables, charts, pages and the terminal."""
