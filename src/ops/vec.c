#include "ops/vec.h"

const float vec_exp_least = -88.1f, vec_exp_most = 88.8f;
