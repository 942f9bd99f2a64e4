// Everything of weft::core: tensors, autograd, layers, optimizers.
#pragma once
