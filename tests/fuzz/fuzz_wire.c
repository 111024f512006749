/* Bytes from other processes: any bytes are refused, or are within what this program can handle. */
#include "comm/reduce.h"
#include "comm/wire.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_control(const uint8_t *bytes)
{
    WireControl message;
    Pulse       pulse;
    CommEnd     end = {0};
    char        why[256];
    CommLimits  limits = {.progress = 1e12, .grace = 1}; /* limits so large that the rank is never late */
    if (!wire_control_read(bytes, &message)) return;
    pulse_init(&pulse);
    pulse_told(&pulse, message.phase, message.longest, message.silence, message.waits);
    if (pulse_judge(&pulse, message.rank, &limits, pulse_now(), why, sizeof why)) abort();
    if (!comm_end_keep(&end, message.rank, (Status)message.cause, message.why) || comm_end_status(&end) != ERR_RANK) abort();
}

static void read_call(const uint8_t *bytes)
{
    CommCall call, again;
    WireCall written;
    char     text[96];
    if (!wire_call_read(bytes, &call)) return;
    comm_call_text(&call, text, sizeof text);
    wire_call_write(&call, &written);
    if (!wire_call_read(&written, &again) || !comm_call_same(&call, &again)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t     bytes[sizeof(WireControl)] = {0}; /* as large as the largest message */
    WireHello   hello;
    WireVerdict verdict;
    memcpy(bytes, data, size < sizeof bytes ? size : sizeof bytes);
    if (wire_hello_read(bytes, &hello) && (hello.channel < 0 || hello.channel >= CHANNEL_COUNT)) abort();
    if (wire_verdict_read(bytes, &verdict) && strlen(verdict.why) >= sizeof verdict.why) abort();
    read_control(bytes);
    read_call(bytes);
    return 0;
}
