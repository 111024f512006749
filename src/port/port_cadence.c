/* When a run saves and evaluates. Several keys decide it together: a strategy (no, steps, epoch; for saves also best), and numbers that
 * count under one strategy alone. transformers' TrainingArguments: without a strategy, saves go by steps and there are no evaluations.
 * Axolotl: numbers override the strategy, 0 means no number, and saves_per_epoch is turned into a part of all steps. */
#include "port/port_internal.h"

#include <math.h>
#include <string.h>

typedef enum Strategy { STRATEGY_ABSENT, STRATEGY_NO, STRATEGY_STEPS, STRATEGY_EPOCH, STRATEGY_BEST } Strategy;

/* A key of the file and its value; value NULL: the key is absent. */
typedef struct Given {
    const YamlNode *key, *value;
} Given;

static Given find(const Port *port, const char *name)
{
    Given given = {0};
    for (size_t i = 0; i < port->root->count; i++)
        if (port->root->keys[i]->type == YAML_SCALAR && strcmp(port->root->keys[i]->text.data, name) == 0 &&
            !yaml_is_null(port->root->items[i]))
            given = (Given){port->root->keys[i], port->root->items[i]};
    return given;
}

static const char *origin(Port *port, Given given)
{
    return port_origin(port, given.key, "");
}

/* An unknown word is a problem. YAML may have read `no` as a boolean. */
static Strategy read_strategy(Port *port, Given given, bool may_be_best)
{
    static const char *const words[] = {"no", "steps", "epoch", "best"};
    const char              *text = given.value && given.value->type == YAML_SCALAR ? given.value->text.data : "";
    bool                     on;
    if (!given.value) return STRATEGY_ABSENT;
    if (given.value->is_plain && bool_read(text, &on) && !on) return STRATEGY_NO;
    for (int i = 0; i < 3 + may_be_best; i++)
        if (strcmp(text, words[i]) == 0) return (Strategy)(STRATEGY_NO + i);
    port_problem(port, given.value, "%s: expected no, steps%s or epoch, found \"%.80s\"", given.key->text.data, may_be_best ? ", best" : "",
                 text);
    return STRATEGY_ABSENT;
}

/* Whether the number is above 0. A value that isn't a number is a problem. */
static bool is_positive(Port *port, Given given)
{
    double number = 0;
    if (given.value && !port_number(given.value, &number)) port_problem(port, given.value, "%s: expected a number", given.key->text.data);
    return number > 0;
}

static double epochs_of(const Port *port)
{
    double epochs = port->tool == AXOLOTL ? 1 : 3;
    (void)port_number(port_get(port->root, port->tool == AXOLOTL ? "num_epochs" : "num_train_epochs"), &epochs);
    return epochs;
}

/* For events every `part` (below 1) of all steps. If that is a whole number of events per epoch, sets per_epoch and returns true. */
static bool set_part(Port *port, double part, ConfigKey per_epoch, const char *from)
{
    double times = 1 / (part * epochs_of(port)), whole = round(times);
    if (!(whole >= 1) || fabs(times - whole) > 1e-6 * whole) return false;
    port_set_number(port, per_epoch, whole, arena_printf(port->arena, "%s, of all steps", from));
    return true;
}

/* Whether the steps at which evaluations happen affect the model: evaluations may end the run early, or choose the best model. */
static bool evals_decide(const Port *port)
{
    return port->config.early_stopping_patience > 0 || port->config.load_best_model_at_end;
}

/* Sets events to every `steps` steps; `steps` below 1 is a part of all steps. per_epoch: our key for times per epoch; 0: none. */
static void set_steps(Port *port, Given given, double steps, ConfigKey key, ConfigKey per_epoch, const char *from)
{
    double most = -1;
    (void)port_number(port_get(port->root, "max_steps"), &most);
    if (steps >= 1)
        port_set_number(port, key, ceil(steps), from);
    else if (most > 0)
        port_set_number(port, key, ceil(steps * most), arena_printf(port->arena, "%s, of max_steps", from));
    else if (!per_epoch || !set_part(port, steps, per_epoch, from))
        port_tell(port, key == KEY_run_eval_steps && evals_decide(port), given.key, "",
                  arena_printf(port->arena, "a part of all steps; set %s to a number of them", options[key].name));
}

/* Axolotl turns times per epoch into a part of all steps; if max_steps is given, of max_steps. */
static void set_per_epoch(Port *port, Given given, ConfigKey key, ConfigKey per_epoch)
{
    double times = 0, most = -1;
    (void)port_number(given.value, &times);
    (void)port_number(port_get(port->root, "max_steps"), &most);
    double part = 1 / (times * epochs_of(port));
    if (most > 0 && part < 1)
        set_steps(port, given, part, key, per_epoch, origin(port, given));
    else
        port_take(port, &port->run, per_epoch, given.value, origin(port, given));
}

static double number_of(Given given)
{
    double number = 0;
    (void)port_number(given.value, &number);
    return number;
}

void port_read_steps_of_logs(Port *port, const PortPair *pair)
{
    Given given = {pair->key, pair->value};
    if (is_positive(port, given)) set_steps(port, given, number_of(given), KEY_run_logging_steps, 0, origin(port, given));
}

void port_read_steps_of_saves(Port *port, const PortPair *pair)
{
    Given given = {pair->key, pair->value};
    if (is_positive(port, given))
        set_steps(port, given, number_of(given), KEY_run_save_steps, KEY_run_saves_per_epoch, origin(port, given));
}

static void finish_logs(Port *port)
{
    Given given = find(port, "logging_strategy");
    if (read_strategy(port, given, false) > STRATEGY_ABSENT) port_tell(port, false, given.key, "", "a line every logging_steps");
}

/* ---- strategies and numbers ---- */

/* One kind of event (saves or evaluations): the tool's keys and our keys. */
typedef struct Cadence {
    Given     strategy, steps, times;
    Strategy  how;
    bool      has_steps, has_times, says_steps; /* says_steps: the strategy is `steps` */
    ConfigKey key, per_epoch;
} Cadence;

static Cadence read_cadence(Port *port, const char *strategy, const char *steps, const char *times)
{
    Cadence out = {.strategy = find(port, strategy), .steps = find(port, steps)};
    if (port->tool == AXOLOTL) out.times = find(port, times);
    out.has_steps = is_positive(port, out.steps);
    out.has_times = is_positive(port, out.times);
    return out;
}

/* In Axolotl a number overrides the strategy. (Axolotl itself refuses a number of steps beside a strategy other than `steps`.) */
static void finish_axolotl_numbers(Port *port, Cadence *it)
{
    if (!it->has_steps && !it->has_times) return;
    Given number = it->has_steps ? it->steps : it->times;
    if (it->how > STRATEGY_ABSENT && it->how != STRATEGY_STEPS)
        port_tell(port, true, it->strategy.key, "",
                  arena_printf(port->arena, "%s goes before it; Axolotl takes only one of them", number.key->text.data));
    if (it->has_steps && it->has_times)
        port_tell(port, true, it->times.key, "",
                  arena_printf(port->arena, "%s goes before it; Axolotl takes only one of them", it->steps.key->text.data));
    it->how = STRATEGY_STEPS;
}

static void set_number_of(Port *port, const Cadence *it)
{
    Given number = it->has_steps ? it->steps : it->times;
    if (it->says_steps) port_tell(port, false, it->strategy.key, "", arena_printf(port->arena, "%s says it", number.key->text.data));
    if (it->has_steps)
        set_steps(port, it->steps, number_of(it->steps), it->key, it->per_epoch, origin(port, it->steps));
    else
        set_per_epoch(port, it->times, it->key, it->per_epoch);
}

/* Reports a number of steps that has no effect because the strategy isn't `steps`. */
static void tell_idle_steps(Port *port, const Cadence *it, const char *how)
{
    if (it->has_steps)
        port_tell(port, false, it->steps.key, "",
                  arena_printf(port->arena, "no effect there, as %s is %s",
                               it->strategy.key ? it->strategy.key->text.data : "eval_strategy", how));
}

static void finish_saves(Port *port)
{
    Cadence it = read_cadence(port, "save_strategy", "save_steps", "saves_per_epoch");
    it.key = KEY_run_save_steps;
    it.per_epoch = KEY_run_saves_per_epoch;
    it.how = read_strategy(port, it.strategy, true);
    it.says_steps = it.how == STRATEGY_STEPS;
    if (port->tool == AXOLOTL) finish_axolotl_numbers(port, &it);
    bool has_number = it.has_steps || it.has_times, is_never = it.steps.value && !it.has_steps && port->tool != AXOLOTL;
    if (it.how == STRATEGY_ABSENT && !has_number && !is_never) return;
    if (it.how == STRATEGY_ABSENT) it.how = STRATEGY_STEPS;
    if (it.how == STRATEGY_STEPS && !has_number && !is_never) { /* every 500 steps, in Axolotl too */
        if (port->tool == AXOLOTL) port_set(port, &port->run, it.key, "500", "transformers' default, training_args.py");
        return;
    }
    port->has_no_default[it.key] = port->has_no_default[it.per_epoch] = true;
    if (it.how == STRATEGY_STEPS && has_number)
        set_number_of(port, &it);
    else if (it.how == STRATEGY_EPOCH)
        port_set(port, &port->run, it.per_epoch, "1", origin(port, it.strategy));
    else if (it.how == STRATEGY_BEST)
        port_set(port, &port->run, KEY_run_save_best, "true", origin(port, it.strategy));
    else
        port_set(port, &port->run, it.key, "0", origin(port, is_never ? it.steps : it.strategy));
    if (it.how != STRATEGY_STEPS && it.strategy.key) tell_idle_steps(port, &it, it.strategy.value->text.data);
}

static bool has_evals(const Port *port)
{
    return port->config.validation_split_ratio > 0 || port->validation.count > 0;
}

/* Evaluations without a number of steps happen as often as log lines. */
static void set_eval_steps_of_logs(Port *port, const Cadence *it)
{
    Given       logs = find(port, "logging_steps");
    double      steps = port->tool == TRL ? 10 : 500, most = 0;
    const char *from = port->tool == TRL ? "logging_steps, TRL's default: trl/trainer/base_config.py"
                                         : "logging_steps, transformers' default: training_args.py";
    (void)port_number(port_get(port->root, "max_steps"), &most);
    if (is_positive(port, logs)) {
        steps = number_of(logs);
        from = arena_printf(port->arena, "%s, as there is no eval_steps", origin(port, logs));
    } else if (port->tool == AXOLOTL && most > 0) {
        steps = fmax(fmin(floor(0.005 * most), 10), 1);
        from = "logging_steps, Axolotl's default: src/axolotl/core/builders/base.py";
    } else if (port->tool == AXOLOTL) {
        port_tell(port, evals_decide(port), it->strategy.key, "",
                  "as often as log lines, which Axolotl takes from all steps; set eval_steps to a number of them");
        return;
    }
    set_steps(port, logs.key ? logs : it->strategy, steps, it->key, it->per_epoch, from);
}

static void finish_evals(Port *port)
{
    const char *name = find(port, "eval_strategy").value ? "eval_strategy" : "evaluation_strategy";
    Cadence     it = read_cadence(port, name, "eval_steps", "evals_per_epoch");
    it.key = KEY_run_eval_steps;
    it.per_epoch = KEY_run_evals_per_epoch;
    it.how = read_strategy(port, it.strategy, false);
    it.says_steps = it.how == STRATEGY_STEPS;
    if (port->tool == AXOLOTL) finish_axolotl_numbers(port, &it);
    if (it.how == STRATEGY_STEPS && (it.has_steps || it.has_times))
        set_number_of(port, &it);
    else if (it.how == STRATEGY_STEPS && has_evals(port))
        set_eval_steps_of_logs(port, &it);
    else if (it.how == STRATEGY_EPOCH)
        port_set(port, &port->run, it.per_epoch, "1", origin(port, it.strategy));
    if (it.how != STRATEGY_STEPS) tell_idle_steps(port, &it, it.how == STRATEGY_EPOCH ? "epoch" : "no");
}

/* Our evaluations have no delay: reports a delay that the file asks for. */
static void finish_delay(Port *port)
{
    Given delay = find(port, "eval_delay");
    if (is_positive(port, delay) && (port->from[KEY_run_eval_steps] || port->from[KEY_run_evals_per_epoch]))
        port_tell(port, evals_decide(port), delay.key, "",
                  "evaluations begin with the first; an early one may be the best, and patience counts it");
}

/* ---- the best model ---- */

/* Axolotl's steps between events, from its number of steps or its times per epoch. Below 1: a part of all steps. 0: no events. */
static double axolotl_steps(const Port *port, const char *steps, const char *per_epoch)
{
    double number = number_of(find(port, steps)), times = number_of(find(port, per_epoch));
    if (number > 0) return number;
    if (!(times > 0)) return 0;
    number = 1.0 / (times * epochs_of(port));
    return number < 1 ? number : 0;
}

/* Axolotl loads the best model at the end if save_steps is a multiple of eval_steps, unless the file says no. */
static void finish_axolotl_best(Port *port)
{
    double      saves = axolotl_steps(port, "save_steps", "saves_per_epoch"), evals = axolotl_steps(port, "eval_steps", "evals_per_epoch");
    bool        is_refused = port_is_false(port->root, "load_best_model_at_end") && port->config.early_stopping_patience == 0;
    bool        takes = has_evals(port) && saves > 0 && evals > 0 && fmod(saves, evals) == 0 && !is_refused;
    const char *from = "save_steps, a multiple of eval_steps: src/axolotl/core/builders/causal.py";
    if (takes && !port->config.load_best_model_at_end)
        port_replace(port, &port->run, KEY_run_load_best_model_at_end, "true", from);
    else if (!takes)
        port_unset(port, &port->run, KEY_run_load_best_model_at_end);
}

/* Says that the tool picks the best only among evaluations that coincide with a save. */
static void tell_saves_of_best(Port *port)
{
    const Config *config = &port->config;
    bool          has_fewer = config->save_steps > config->eval_steps && config->eval_steps > 0;
    has_fewer |= config->saves_per_epoch > 0 && config->saves_per_epoch < config->evals_per_epoch;
    if (config->load_best_model_at_end && has_fewer)
        str_list_push(port->arena, &port->changes,
                      "load_best_model_at_end: the best of all evaluations is kept; there it must have been saved, and fewer are");
}

void port_finish_cadence(Port *port)
{
    finish_saves(port);
    finish_evals(port);
    finish_delay(port);
    finish_logs(port);
    if (port->tool == AXOLOTL) finish_axolotl_best(port);
    tell_saves_of_best(port);
}
