/* See inspect_view.h. Trained tokens are green; without colour they are between [[ and ]]. */
#include "cli/inspect_view.h"

#include "base/log.h"
#include "base/visible.h"
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_TOKENS_SHOWN = 2000, FLUSH_BYTES = 1 << 16, BAR_WIDTH = 50, MAX_BAD_SHOWN = 5 };

typedef struct Printer {
    const InspectView *view;
    const Tokenizer   *tokenizer;
    bool               colour;
    int64_t            shown, bad_shown;
    StrBuf             out;
    Status             status;
} Printer;

static Status flush(Printer *p)
{
    Status status = p->colour ? cli_print_coloured(&p->out) : cli_print(&p->out);
    strbuf_clear(&p->out);
    return status;
}

static void put_json_row(StrBuf *out, const InspectRow *row)
{
    strbuf_puts(out, "{\"ids\": [");
    for (size_t i = 0; i < row->count; i++) strbuf_printf(out, i ? ",%d" : "%d", row->ids[i]);
    strbuf_puts(out, "], \"mask\": [");
    for (size_t i = 0; i < row->count; i++) strbuf_puts(out, row->mask[i] ? i ? ",1" : "1" : i ? ",0" : "0");
    strbuf_printf(out, "], \"row\": %lld", (long long)row->row);
    if (row->part) strbuf_printf(out, ", \"part\": %lld", (long long)row->part);
    strbuf_puts(out, "}\n");
}

static void put_switch(Printer *p, bool trained)
{
    if (p->colour)
        strbuf_puts(&p->out, trained ? "\033[32m" : "\033[0m");
    else
        strbuf_puts(&p->out, trained ? "[[" : "]]");
}

/* Appends text from files. In coloured output its control characters are made visible, so that only our own colours take effect. */
static void put_piece(Printer *p, StrBuf *piece)
{
    if (p->colour)
        visible_append(&p->out, strbuf_cstr(piece), piece->len);
    else
        strbuf_append(&p->out, strbuf_cstr(piece), piece->len);
    strbuf_clear(piece);
}

/* Appends the decoded text; the colour is switched where the mask changes. */
static Status put_text(Printer *p, const InspectRow *row, size_t count)
{
    TokenStream stream = {0};
    StrBuf      piece = {0};
    bool        trained = false;
    Status      status = OK;
    for (size_t i = 0; i < count && status == OK; i++) {
        if (trained != (row->mask[i] != 0)) put_switch(p, trained = !trained);
        status = token_stream_push(p->tokenizer, &stream, row->ids[i], false, &piece);
        put_piece(p, &piece);
    }
    token_stream_finish(&stream, &piece);
    put_piece(p, &piece);
    strbuf_deinit(&piece);
    if (trained) put_switch(p, false);
    return status;
}

static Status put_row(Printer *p, const InspectRow *row)
{
    size_t count = row->count < MAX_TOKENS_SHOWN ? row->count : MAX_TOKENS_SHOWN;
    StrBuf head = {0};
    strbuf_printf(&head, "── row %lld", (long long)row->row);
    if (row->part) strbuf_printf(&head, ", part %lld", (long long)row->part);
    strbuf_printf(&head, " (%s:%lld): %zu tokens, %lld trained\n", row->path, (long long)row->line, row->count,
                  (long long)row->num_trained);
    put_piece(p, &head);
    strbuf_deinit(&head);
    TRY(put_text(p, row, count));
    strbuf_puts(&p->out, "\nids");
    bool trained = false;
    for (size_t i = 0; i < count; i++) {
        strbuf_putc(&p->out, ' ');
        if (trained != (row->mask[i] != 0)) put_switch(p, trained = !trained);
        strbuf_printf(&p->out, "%d", row->ids[i]);
        if (trained && (i + 1 == count || !row->mask[i + 1])) put_switch(p, trained = false);
    }
    if (count < row->count) strbuf_printf(&p->out, " and %zu more", row->count - count);
    strbuf_puts(&p->out, "\n\n");
    return OK;
}

static bool show_row(void *context, const InspectRow *row)
{
    Printer *p = context;
    if (row->error) {
        if (p->bad_shown++ < MAX_BAD_SHOWN) log_warn("skipped: %s", row->error);
        return true;
    }
    if (p->view->rows >= 0 && p->shown >= p->view->rows) return true;
    p->shown++;
    if (p->view->json)
        put_json_row(&p->out, row);
    else
        p->status = put_row(p, row);
    if (p->status == OK && p->out.len > FLUSH_BYTES) p->status = flush(p);
    return p->status == OK;
}

static void put_histogram(StrBuf *out, const InspectSummary *s)
{
    int64_t most = 1;
    int     first = INSPECT_BUCKETS, last = -1;
    for (int i = 0; i < INSPECT_BUCKETS; i++) {
        if (!s->histogram[i]) continue;
        if (i < first) first = i;
        last = i;
        if (s->histogram[i] > most) most = s->histogram[i];
    }
    strbuf_puts(out, "lengths, in tokens\n");
    for (int i = first; i <= last; i++) {
        char range[48];
        if (i == INSPECT_BUCKETS - 1)
            snprintf(range, sizeof range, "from %lld", 1LL << i);
        else if (i == 0)
            snprintf(range, sizeof range, "1");
        else
            snprintf(range, sizeof range, "%lld-%lld", 1LL << i, (1LL << (i + 1)) - 1);
        strbuf_printf(out, "  %16s ", range);
        for (int64_t k = (s->histogram[i] * BAR_WIDTH + most - 1) / most; k > 0; k--) strbuf_puts(out, "█");
        strbuf_printf(out, " %lld\n", (long long)s->histogram[i]);
    }
}

static void put_summary(StrBuf *out, const char *path, const InspectSummary *s, const InspectPacking *packing)
{
    int64_t kept = s->num_rows - s->num_bad_rows - s->num_untrained;
    strbuf_printf(out, "dataset    %s\nformat     %s\nrows       %lld", path, s->format, (long long)s->num_rows);
    if (s->num_bad_rows) strbuf_printf(out, ", %lld bad", (long long)s->num_bad_rows);
    if (s->num_untrained) strbuf_printf(out, ", %lld without a trained token (left out)", (long long)s->num_untrained);
    strbuf_printf(out, "\ntokens     %lld, of which %lld are trained (%.1f%%)\n", (long long)s->num_tokens, (long long)s->num_trained,
                  s->num_tokens ? 100.0 * (double)s->num_trained / (double)s->num_tokens : 0.0);
    if (kept > 0)
        strbuf_printf(out, "length     %.1f on average, %lld to %lld\n", (double)s->num_tokens / (double)kept, (long long)s->shortest,
                      (long long)s->longest);
    if (s->num_without_stop) strbuf_printf(out, "no stop    %lld trained turns end without a stop token\n", (long long)s->num_without_stop);
    if (s->num_without_calls)
        strbuf_printf(out, "no calls   %lld trained turns have tool calls that the chat template doesn't print\n",
                      (long long)s->num_without_calls);
    if (s->num_empty) strbuf_printf(out, "empty      %lld trained turns have neither content nor tool calls\n", (long long)s->num_empty);
    if (s->num_unprinted)
        strbuf_printf(out, "unprinted  %lld messages have a content that the chat template doesn't print; the first: %s\n",
                      (long long)s->num_unprinted, s->first_unprinted);
    if (s->unused.count) {
        strbuf_puts(out, "not used   ");
        field_set_put(&s->unused, out);
        strbuf_putc(out, '\n');
    }
    if (packing->seq_len > 0 && kept > 0) {
        static const char *const what[] = {
            [LONG_TRUNCATE] = "cut", [LONG_SPLIT] = "split", [LONG_DROP] = "left out", [LONG_ERROR] = "an error"};
        strbuf_printf(out, "%s    %lld sequences of %d, %.1f%% filled", packing->is_padded ? "padding" : "packing",
                      (long long)s->packed_rows, packing->seq_len, 100 * s->packing_efficiency);
        if (s->num_too_long) strbuf_printf(out, "; %lld rows are longer (%s)", (long long)s->num_too_long, what[packing->long_samples]);
        strbuf_putc(out, '\n');
    }
    if (kept > 0) put_histogram(out, s);
    strbuf_putc(out, '\n');
}

Status inspect_view_print(const TokenizeJob *job, const InspectView *view)
{
    InspectSummary summary;
    Printer        p = {.view = view, .tokenizer = job->tokenizer, .colour = log_has_colour(STDOUT_FILENO)};
    Status         status = inspect_dataset(job, 0, view->json ? (InspectPacking){0} : view->packing, show_row, &p, &summary);
    if (status == OK) status = p.status;
    log_lines(NULL, summary.file_notes);
    StrBuf in_all = {0};
    if (status == OK && !view->json) put_summary(&in_all, job->dataset->path, &summary, &view->packing);
    put_piece(&p, &in_all);
    strbuf_deinit(&in_all);
    if (p.bad_shown > MAX_BAD_SHOWN) log_warn("skipped: %lld bad rows in all", (long long)p.bad_shown);
    Status printed = flush(&p); /* after an error too: the rows before it are printed */
    strbuf_deinit(&p.out);
    return status == OK ? printed : status;
}
