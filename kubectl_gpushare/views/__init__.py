"""Views: what was fetched → tables, pages and documents. Pure: no clock, no terminal, no cluster."""
