/* The filters that have functions of their own; the table of all is in builtins.c. Texts and numbers are in filters.c, sequences
 * in filters_seq.c, what knows of HTML and addresses in filters_html.c. */
#pragma once

#include "text/template/render.h"

// clang-format off
#define TEMPLATE_FILTERS(X) \
    X(abs) \
    X(attr) \
    X(batch) X(center) X(default) X(dictsort) X(escape) X(extreme) X(filesizeformat) X(first) X(float) X(format) X(groupby) X(indent) \
        X(int) X(items) X(join) X(last) X(length) X(list) X(map) X(replace) X(reverse) X(round) X(safe) X(select) X(slice) X(sort) \
            X(string) X(striptags) X(sum) X(title) X(tojson) X(truncate) X(unique) X(urlencode) X(wordcount) X(xmlattr)
// clang-format on

#define DECLARE(name) Value filter_##name(Render *r, const Call *c);
TEMPLATE_FILTERS(DECLARE)
#undef DECLARE

/* Modes: of select, reject, selectattr, rejectattr; of max. */
enum { SELECT_NOT = 1, SELECT_ATTRIBUTE = 2 };
