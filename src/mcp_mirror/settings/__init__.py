"""The settings: one frozen class per section of the configuration, which declares each key once.

Settings import nothing else of the package: they know neither the file that they come from nor the code that reads them.
"""
