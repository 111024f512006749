/* See metrics.h. */
#include "serve/metrics.h"

static const double bounds[METRICS_BUCKETS] = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60};
/* The last (0) counts all other statuses. */
static const int statuses[METRICS_STATUSES] = {200, 400, 401, 403, 404, 405, 408, 413, 414, 415, 417, 429, 431, 499, 500, 501, 503, 505, 0};

void metrics_count(Metrics *m, int route, int status)
{
    int i = 0;
    while (i < METRICS_STATUSES - 1 && statuses[i] != status) i++;
    m->requests[route][i]++;
}

void metrics_time(Histogram *h, double seconds)
{
    int i = 0;
    while (i < METRICS_BUCKETS && seconds > bounds[i]) i++;
    h->counts[i]++;
    h->sum += seconds;
}

static void put_head(StrBuf *out, const char *name, const char *type, const char *help)
{
    strbuf_printf(out, "# HELP surogate_%s %s\n# TYPE surogate_%s %s\n", name, help, name, type);
}

static void put_number(StrBuf *out, const char *name, const char *type, const char *help, int64_t value)
{
    put_head(out, name, type, help);
    strbuf_printf(out, "surogate_%s %lld\n", name, (long long)value);
}

static void put_histogram(StrBuf *out, const char *name, const char *help, const Histogram *h)
{
    int64_t below = 0;
    put_head(out, name, "histogram", help);
    for (int i = 0; i < METRICS_BUCKETS; i++) {
        below += h->counts[i];
        strbuf_printf(out, "surogate_%s_bucket{le=\"%g\"} %lld\n", name, bounds[i], (long long)below);
    }
    below += h->counts[METRICS_BUCKETS];
    strbuf_printf(out, "surogate_%s_bucket{le=\"+Inf\"} %lld\nsurogate_%s_sum %.6f\nsurogate_%s_count %lld\n", name, (long long)below, name,
                  h->sum, name, (long long)below);
}

static void put_requests(StrBuf *out, const Metrics *m, const char *const *paths, int num_paths)
{
    put_head(out, "requests_total", "counter", "Requests that were answered, by path and status; 499: the client had gone.");
    for (int route = 0; route <= num_paths; route++)
        for (int i = 0; i < METRICS_STATUSES; i++) {
            if (!m->requests[route][i]) continue;
            strbuf_printf(out, "surogate_requests_total{path=\"%s\",status=\"", route < num_paths ? paths[route] : "other");
            if (statuses[i])
                strbuf_printf(out, "%d", statuses[i]);
            else
                strbuf_puts(out, "other");
            strbuf_printf(out, "\"} %lld\n", (long long)m->requests[route][i]);
        }
}

void metrics_write(const Metrics *m, const MetricsNow *now, const char *const *paths, int num_paths, StrBuf *out)
{
    put_requests(out, m, paths, num_paths);
    put_number(out, "prompt_tokens_total", "counter", "Tokens of prompts.", m->prompt_tokens);
    put_number(out, "generated_tokens_total", "counter", "Tokens of texts.", m->text_tokens);
    put_number(out, "clients_gone_total", "counter", "Requests whose client had gone before the answer's end.", m->num_gone);
    put_number(out, "texts_running", "gauge", "Texts that have a place.", now->engine.running);
    put_number(out, "texts_waiting", "gauge", "Texts that wait for a place.", now->engine.waiting);
    put_number(out, "texts_preempted_total", "counter", "How often a text lost its place for want of pages.", now->engine.preempted);
    put_number(out, "cache_pages", "gauge", "Pages of the KV cache, of 32 tokens each.", now->engine.pages);
    put_number(out, "cache_pages_free", "gauge", "Of these, pages that no text has.", now->engine.pages_free);
    put_number(out, "connections", "gauge", "Connections that are open.", now->connections);
    put_histogram(out, "first_token_seconds", "From a request's arrival to the first token of its text.", &m->first_token);
    put_histogram(out, "request_seconds", "From a request for texts to its answer's end.", &m->duration);
}
