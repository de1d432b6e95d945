"""Pages about the pages themselves: the glossary, and the components that pages are made of."""
