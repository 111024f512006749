/* Which device a user's word means. */
#include "device/device.h"

#include "base/log.h"

#include <string.h>

Status device_open(const char *name, int threads, Device **out)
{
    if (strcmp(name, "cpu") == 0) return device_cpu_create(threads, out);
    if (strcmp(name, "cuda") == 0) return device_cuda_create(0, out);
    FAIL_IF(strcmp(name, "auto") != 0, ERR_INVALID, "device \"%s\"; expected auto, cpu or cuda", name);
    if (device_cuda_create(0, out) == OK) return OK;
    log_info("running on the CPU: %s", status_message());
    status_clear();
    return device_cpu_create(threads, out);
}
