"""Block-list tasks: template language, data statistics, sampling and exact enumeration."""
