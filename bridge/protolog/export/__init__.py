"""A log in other forms: a page to look at, an archive for HTTP tools, rows for data frames."""
