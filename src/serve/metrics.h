/* What a server counts, in the text format of Prometheus. Used by the server's thread alone. */
#pragma once

#include "serve/engine.h"

enum { METRICS_MOST_ROUTES = 16, METRICS_STATUSES = 19, METRICS_BUCKETS = 13 };

typedef struct Histogram {
    int64_t counts[METRICS_BUCKETS + 1]; /* the last: longer than all bounds */
    double  sum;
} Histogram;

typedef struct Metrics {
    int64_t   requests[METRICS_MOST_ROUTES + 1][METRICS_STATUSES]; /* [route][status]; the last route: requests that match none */
    int64_t   prompt_tokens, text_tokens, num_gone;
    Histogram first_token, duration; /* seconds, of requests for texts */
} Metrics;

void metrics_count(Metrics *metrics, int route, int status);
void metrics_time(Histogram *histogram, double seconds);

typedef struct MetricsNow {
    EngineStats engine;
    int         connections;
} MetricsNow;

/* Appends all metrics. paths: (num_paths) the paths of the routes, in the order of routes.def. */
void metrics_write(const Metrics *metrics, const MetricsNow *now, const char *const *paths, int num_paths, StrBuf *out);
