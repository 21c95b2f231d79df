"""Lifted neural networks: networks trained by convex blocks.

What can be imported from here is listed in `__init__.pyi`; each part, and torch with it, is loaded when it is first used.
Examples in docstrings run after `import torch` and `import liftednn as lnn`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = "0.1.0"
