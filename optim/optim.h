// Includes all headers of optim.
#pragma once

#include <weft/optim/checkpoint.h>
#include <weft/optim/clip.h>
#include <weft/optim/grad_scaler.h>
#include <weft/optim/optimizer.h>
#include <weft/optim/rules.h>
#include <weft/optim/schedule.h>
