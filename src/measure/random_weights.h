/* Random weights for measuring. Their values don't matter, but zeros would be faster than real weights. */
#pragma once

#include "model/hf_model.h"
#include "run/session.h"

/* Fills all parameters of a session, including adapters and other namespaces. */
NODISCARD Status random_weights(Session *session, const HfModel *model);
