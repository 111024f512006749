/* The program's version. */
#pragma once

#define SUROGATE_VERSION "0.1.0"
