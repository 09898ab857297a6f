"""The settings: one frozen class per section of the configuration, which declares each key once.

Settings import nothing else of the package. They know neither the file nor the code that reads them.
"""
