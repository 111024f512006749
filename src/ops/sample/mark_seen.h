/* Operands of mark_seen. */
#pragma once

#include "ops/attrs.h"

enum { MARK_SEEN_TOKENS, MARK_SEEN_STARTS, MARK_SEEN_LAST, MARK_SEEN_SLOTS, MARK_SEEN_SEEN, MARK_SEEN_TEXT_STARTS /* NULL: no text */ };
