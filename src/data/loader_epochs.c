/* Which rows an epoch has, and in which order. A source of weight 2.3 gives each epoch all its rows twice. For the 0.3, samples are drawn
 * from one endless sequence, which has every sample once before any is repeated; each epoch continues where the one before it ended.
 * Drawn samples are packed epoch by epoch, so that an epoch has exactly as many of them as the weight says.
 *
 * If all weights are whole numbers, all epochs have equally many rows. Else a list says where each epoch begins; it grows as needed. */
#include "data/loader_rows.h"

#include "base/array.h"

#include <math.h>
#include <stdlib.h>

/* Samples of the endless sequence drawn before an epoch. Weights are decimals: rounding must not push a product below a whole number. */
static int64_t drawn_before(const Rows *rows, const SourceRows *source, int64_t epoch)
{
    double  wanted = source->fraction * (double)source->num_units * (double)epoch;
    int64_t count = (int64_t)floor(wanted * (1 + 1e-12) + 1e-9);
    bool    is_bare = rows->options.at_least_one && source->fraction > 0 && source->whole_rows == 0 && source->num_units > 0;
    return is_bare && epoch > 0 && count == 0 ? 1 : count;
}

/* The unit (sample; LOADER_STREAM: row) at index `place` of the endless sequence. */
static int64_t drawn_unit(const Rows *rows, int s, int64_t place)
{
    int64_t  count = rows->sources[s].num_units;
    uint64_t key = rows->options.seed ^ (0x9E3779B97F4A7C15u * (uint64_t)(s + 1));
    return rows->options.shuffle ? permute_index(place % count, count, key, (uint64_t)(place / count)) : place % count;
}

/* Packs the samples that an epoch draws. The last KEPT_DRAWS results are kept. Needs the lock. */
static const Drawn *drawn_of(Rows *rows, int s, int64_t epoch)
{
    SourceRows *source = &rows->sources[s];
    for (int i = 0; i < KEPT_DRAWS; i++)
        if (source->drawn[i].items && source->drawn[i].epoch == epoch) return &source->drawn[i];
    Drawn  *drawn = &source->drawn[source->next_drawn++ % KEPT_DRAWS];
    int64_t first = drawn_before(rows, source, epoch), count = drawn_before(rows, source, epoch + 1) - first;
    free(drawn->items);
    packing_deinit(&drawn->packing);
    *drawn = (Drawn){.epoch = epoch, .items = malloc_or_end(sizeof *drawn->items * (size_t)(count + 1))};
    int32_t *lengths = malloc_or_end(sizeof *lengths * (size_t)(count + 1));
    for (int64_t i = 0; i < count; i++) {
        drawn->items[i] = drawn_unit(rows, s, first + i);
        lengths[i] = (int32_t)source->spans.data[drawn->items[i]].count;
    }
    pack_best_fit(lengths, count, rows->options.seq_len, &drawn->packing);
    free(lengths);
    return drawn;
}

const Drawn *rows_drawn(Rows *rows, int source, int64_t epoch)
{
    return drawn_of(rows, source, epoch);
}

static int64_t source_rows_of(Rows *rows, int s, int64_t epoch)
{
    const SourceRows *source = &rows->sources[s];
    int64_t           count = drawn_before(rows, source, epoch + 1) - drawn_before(rows, source, epoch);
    bool              is_packed = rows->options.mode == LOADER_PACKED;
    return source->whole_rows + (count > 0 && is_packed ? drawn_of(rows, s, epoch)->packing.num_rows : count);
}

static int64_t rows_of(Rows *rows, int64_t epoch)
{
    int64_t sum = 0;
    for (int s = 0; s < rows->num_sources; s++) sum += source_rows_of(rows, s, epoch);
    return sum;
}

/* ---- where epochs begin ---- */

/* The first epoch from `epoch` on that has rows; -1: none before epoch NEVER. */
static int64_t next_epoch(const Rows *rows, int64_t epoch)
{
    const double NEVER = 1e15;
    int64_t      found = -1;
    for (int s = 0; s < rows->num_sources; s++) {
        const SourceRows *source = &rows->sources[s];
        double            each = source->fraction * (double)source->num_units;
        int64_t           before = drawn_before(rows, source, epoch), at = epoch;
        if (source->whole_rows > 0) return epoch;
        if (each <= 0 || ((double)before + 1) / each > NEVER) continue;
        if (drawn_before(rows, source, epoch + 1) == before) at = (int64_t)floor(((double)before + 1) / each) - 1;
        while (at > epoch && drawn_before(rows, source, at) > before) at--;
        while (drawn_before(rows, source, at + 1) == before) at++;
        if (found < 0 || at < found) found = at;
    }
    return found;
}

/* Adds the next epoch that has rows to the list; false: there is none. */
static bool add_epoch(Rows *rows)
{
    EpochStart last = rows->starts.len ? rows->starts.data[rows->starts.len - 1] : (EpochStart){.epoch = -1};
    int64_t    epoch = next_epoch(rows, last.epoch + 1);
    if (epoch < 0) return false;
    EpochStart start = {.epoch = epoch, .first = last.first + last.count, .count = rows_of(rows, epoch)};
    EpochList *list = &rows->starts;
    list->data = array_room(list->data, (size_t)list->len + 1, &list->capacity, sizeof *list->data);
    list->data[list->len++] = start;
    return true;
}

/* The epoch that has row `place` of the run; the last epoch if `place` is past the end. Needs the lock. */
static EpochStart start_of(Rows *rows, int64_t place)
{
    const EpochList *list = &rows->starts;
    if (!rows->draws) {
        int64_t count = rows->stats.rows_per_epoch, epoch = place / count;
        return (EpochStart){.epoch = epoch, .first = epoch * count, .count = count};
    }
    while (list->len == 0 || list->data[list->len - 1].first + list->data[list->len - 1].count <= place)
        if (!add_epoch(rows)) break;
    int64_t low = 0, high = list->len;
    while (high - low > 1) { /* finds the last epoch that begins at or before `place` */
        int64_t middle = low + (high - low) / 2;
        if (list->data[middle].first <= place)
            low = middle;
        else
            high = middle;
    }
    return list->data[low];
}

/* Rows in `epochs` epochs. A fraction of the last epoch is rounded up to whole rows. */
static int64_t rows_in(Rows *rows, double epochs)
{
    int64_t whole = (int64_t)floor(epochs);
    double  part = epochs - (double)whole;
    if (!rows->draws) return (int64_t)ceil(epochs * (double)rows->stats.rows_per_epoch - 1e-9);
    while (rows->starts.len == 0 || rows->starts.data[rows->starts.len - 1].epoch < whole)
        if (!add_epoch(rows)) break;
    int64_t sum = 0;
    for (int64_t i = 0; i < rows->starts.len; i++) {
        const EpochStart *start = &rows->starts.data[i];
        if (start->epoch < whole) sum = start->first + start->count;
        if (start->epoch == whole) sum += (int64_t)ceil(part * (double)start->count - 1e-9);
    }
    return sum;
}

void rows_plan_epochs(Rows *rows)
{
    LoaderStats *stats = &rows->stats;
    for (int s = 0; s < rows->num_sources; s++) {
        SourceRows *source = &rows->sources[s];
        rows->draws |= source->fraction > 0 && source->num_units > 0;
        stats->rows_per_epoch += source->whole_rows;
        stats->rows_an_epoch += (double)source->whole_rows + source->fraction * (double)source->num_rows;
    }
    bool is_empty = rows->draws ? next_epoch(rows, 0) < 0 : stats->rows_per_epoch == 0;
    if (rows->draws && !is_empty) stats->rows_per_epoch = rows_of(rows, 0);
    rows->total = is_empty ? 0 : rows->options.num_epochs > 0 ? rows_in(rows, rows->options.num_epochs) : -1;
}

/* ---- looking up rows and epochs ---- */

static void locate_in(Rows *rows, const EpochStart *start, int64_t index, RowPlace *out)
{
    const LoaderOptions *options = &rows->options;
    if (options->shuffle) index = permute_index(index, start->count, options->seed, (uint64_t)start->epoch);
    *out = (RowPlace){.epoch = -1};
    for (int64_t count; index >= (count = source_rows_of(rows, out->source, start->epoch)); out->source++) index -= count;
    const SourceRows *source = &rows->sources[out->source];
    out->row = source->num_rows ? index % source->num_rows : 0;
    if (index < source->whole_rows) return;
    index -= source->whole_rows;
    bool is_packed = options->mode == LOADER_PACKED;
    out->epoch = is_packed ? start->epoch : -1;
    out->row = is_packed ? index : drawn_unit(rows, out->source, drawn_before(rows, source, start->epoch) + index);
}

bool rows_locate(Rows *rows, int64_t place, RowPlace *out)
{
    if (rows->total >= 0 && place >= rows->total) return false;
    pthread_mutex_lock(&rows->lock);
    EpochStart start = start_of(rows, place);
    bool       is_there = place - start.first < start.count;
    if (is_there) locate_in(rows, &start, place - start.first, out);
    pthread_mutex_unlock(&rows->lock);
    return is_there;
}

double rows_epoch(Rows *rows, int64_t place)
{
    if (rows->total >= 0 && place > rows->total) place = rows->total;
    if (!rows->draws) return (double)place / (double)rows->stats.rows_per_epoch;
    pthread_mutex_lock(&rows->lock);
    EpochStart start = start_of(rows, place > 0 ? place - 1 : 0); /* a place at an epoch's end is in that epoch: empty epochs may follow */
    pthread_mutex_unlock(&rows->lock);
    return (double)start.epoch + (double)(place - start.first) / (double)start.count;
}

int rows_unseen(Rows *rows, int64_t end)
{
    if (rows->total >= 0 && end > rows->total) end = rows->total;
    pthread_mutex_lock(&rows->lock);
    int64_t epochs = rows->draws && end > 0 ? start_of(rows, end - 1).epoch + 1 : 1;
    pthread_mutex_unlock(&rows->lock);
    for (int s = 0; s < rows->num_sources; s++) {
        const SourceRows *source = &rows->sources[s];
        if (source->num_units > 0 && source->whole_rows == 0 && drawn_before(rows, source, epochs) == 0) return s;
    }
    return -1;
}
