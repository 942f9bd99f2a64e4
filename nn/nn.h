// Includes all headers of nn.
#pragma once

#include <weft/nn/attention.h>
#include <weft/nn/containers.h>
#include <weft/nn/distributions.h>
#include <weft/nn/init.h>
#include <weft/nn/layers.h>
#include <weft/nn/linear.h>
#include <weft/nn/loss.h>
#include <weft/nn/module.h>
#include <weft/nn/rnn.h>
#include <weft/nn/rnn_cell.h>
