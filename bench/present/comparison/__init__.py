"""Two stored runs compared, cell by cell: what became faster or slower, and how sure that is."""
