"""Starting and operating an installation."""
