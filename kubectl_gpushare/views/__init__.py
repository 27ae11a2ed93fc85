"""Views: a snapshot → tables, pages and documents. Pure: no clock, no terminal, no cluster."""
