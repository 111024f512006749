/* Random weights for measuring: their values don't matter, that they aren't zeros does. */
#pragma once

#include "model/hf_model.h"
#include "run/session.h"

/* All parameters of a session, adapters and other namespaces too. */
NODISCARD Status random_weights(Session *session, const HfModel *model);
