"""The command line: `main` is the table of commands, and each command is a module that is imported when it runs.

A command reads the configuration, builds an application and prints. It contains no logic of the gateway itself.
"""
