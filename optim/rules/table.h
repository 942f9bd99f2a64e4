// The table of the built-in update rules, one row each. It generates the optimizers (optim/rules.h), the
// kernels for the CPU (optim/rules.cpp) and for CUDA devices (optim/rules.cu), and the distributed optimizer
// (distributed/optim/dist_optimizer.h).
#pragma once

#include <weft/optim/rules/adadelta.h>
#include <weft/optim/rules/adagrad.h>
#include <weft/optim/rules/adam.h>
#include <weft/optim/rules/adamax.h>
#include <weft/optim/rules/adamw.h>
#include <weft/optim/rules/qhadam.h>
#include <weft/optim/rules/qhm.h>
#include <weft/optim/rules/rmsprop.h>
#include <weft/optim/rules/rprop.h>
#include <weft/optim/rules/sgd.h>
#include <weft/optim/rules/sparse_adam.h>

/// A row is ROW(name, fields). The structs of a rule are called nameRule and nameOptions. `fields` are all
/// fields of the options, in the order in which they are sent to the owners of remote parameters.
#define WEFT_OPTIMIZER_RULES(ROW)                                                               \
  ROW(SGD, lr, momentum, dampening, weight_decay, nesterov, maximize, master_weights)           \
  ROW(QHM, lr, momentum, nu, weight_decay, weight_decay_type, master_weights)                   \
  ROW(Adam, lr, beta1, beta2, eps, weight_decay, amsgrad, maximize, master_weights)             \
  ROW(AdamW, lr, beta1, beta2, eps, weight_decay, amsgrad, maximize, master_weights)            \
  ROW(QHAdam, lr, beta1, beta2, nu1, nu2, eps, weight_decay, weight_decay_type, master_weights) \
  ROW(RMSprop, lr, alpha, eps, weight_decay, momentum, centered, maximize, master_weights)      \
  ROW(Adagrad, lr, lr_decay, weight_decay, eps, maximize, master_weights)                       \
  ROW(Adadelta, lr, rho, eps, weight_decay, maximize, master_weights)                           \
  ROW(Adamax, lr, beta1, beta2, eps, weight_decay, maximize, master_weights)                    \
  ROW(Rprop, lr, eta_minus, eta_plus, step_min, step_max, maximize, master_weights)             \
  ROW(SparseAdam, lr, beta1, beta2, eps, maximize, master_weights)
