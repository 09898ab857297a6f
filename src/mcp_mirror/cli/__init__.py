"""The command line: one module per command.

A command reads the configuration, builds an application and prints. It contains no logic of the gateway itself.
"""
