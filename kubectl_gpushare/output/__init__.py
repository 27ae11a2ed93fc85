"""Printing: tables, pages and documents as values, and the terminal, pipe or file that shows them."""
