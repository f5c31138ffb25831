/* A stand-in for libnvidia-ml.so.1: the devices that a state file describes, for tests without a GPU.
 *
 * The file (environment variable KVCTL_STANDIN_NVML) is read anew on every call, so a test changes
 * the host by replacing it. One fact a line:
 *
 *   driver TEXT            driver version              init CODE     nvmlInit answers this code
 *   count N                devices (default: one more than the highest index named)
 *   stall SECONDS          every device call takes that long
 *   gpu I KEY VALUE        KEY: name uuid bus minor total used reserved (bytes) util temp power (mW)
 *                          limit (mW) sm mem (MHz) throttle (bits) ecc mig virt
 *   fail I NAME CODE       calls named nvmlDeviceGetNAME answer CODE for device I; NAME * means all;
 *                          NAME Handle means nvmlDeviceGetHandleByIndex
 *   hold I PID MIB         PID holds memory of device I as long as it lives ("na": not available)
 *   keep I PID MIB         the same, whether or not such a process lives here
 *   draw I PID MIB         as keep, in the list of graphics processes
 *   row I PID BYTES        as keep, in raw bytes and with a pid of any size
 *   mig I TOTAL USED       one MIG instance of device I, in MiB
 *   xid I CODE             an error event of device I; each line is told once to each process
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MOST_DEVICES 16
#define MOST_ROWS 256
#define MOST_MIG 7
#define MIB 1048576ULL
#define UNSET 0xffffffffffffffffULL

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, TIMEOUT = 10 };

typedef unsigned long long u64;
typedef struct { unsigned device; int mig; } slot;
typedef slot *handle;

typedef struct {
  char name[96], uuid[80], bus[32];
  unsigned minor, util, temp, power, limit, sm, mem, throttle, mig, virt;
  u64 total, used, reserved, ecc;
  u64 mig_total[MOST_MIG], mig_used[MOST_MIG];
  int migs;
} device;

typedef struct { unsigned device, pid; u64 bytes; int graphics; } row;
typedef struct { int device; char name[64]; int code; } failure;

typedef struct {
  char driver[80];
  int init, count, rows, failures, xids;
  double stall;
  device devices[MOST_DEVICES];
  row row[MOST_ROWS];
  failure failure[MOST_ROWS];
  failure xid[MOST_ROWS];
} world;

static slot slots[MOST_DEVICES], mig_slots[MOST_DEVICES][MOST_MIG];
static _Thread_local world now;

static int lives(unsigned pid) {
  char path[64], line[512], *after;
  snprintf(path, sizeof path, "/proc/%u/stat", pid);
  FILE *file = fopen(path, "r");
  if (!file) return 0;
  char *got = fgets(line, sizeof line, file);
  fclose(file);
  after = got ? strrchr(line, ')') : NULL;
  return after && after[2] != 'Z' && after[2] != 'X';
}

static void set_defaults(world *w) {
  memset(w, 0, sizeof *w);
  snprintf(w->driver, sizeof w->driver, "570.124.06");
  for (int i = 0; i < MOST_DEVICES; i++) {
    device *d = &w->devices[i];
    snprintf(d->name, sizeof d->name, "NVIDIA H200");
    snprintf(d->uuid, sizeof d->uuid, "GPU-%02x000000-0000-4000-8000-000000000000", i);
    snprintf(d->bus, sizeof d->bus, "00000000:%02X:00.0", 0x10 + i);
    d->minor = i;
    d->total = 143771 * MIB;
    d->used = 4 * MIB;
    d->reserved = 600 * MIB;
    d->temp = 34; d->power = 76000; d->limit = 700000; d->sm = 345; d->mem = 3201;
  }
}

static void add_row(world *w, unsigned gpu, unsigned pid, u64 bytes, int graphics) {
  if (w->rows < MOST_ROWS) w->row[w->rows++] = (row){gpu, pid, bytes, graphics};
}

static void set_key(device *d, const char *key, const char *text) {
  u64 n = strtoull(text, NULL, 0);
  if (!strcmp(key, "name")) snprintf(d->name, sizeof d->name, "%s", text);
  else if (!strcmp(key, "uuid")) snprintf(d->uuid, sizeof d->uuid, "%s", text);
  else if (!strcmp(key, "bus")) snprintf(d->bus, sizeof d->bus, "%s", text);
  else if (!strcmp(key, "minor")) d->minor = n;
  else if (!strcmp(key, "total")) d->total = n;
  else if (!strcmp(key, "used")) d->used = n;
  else if (!strcmp(key, "reserved")) d->reserved = n;
  else if (!strcmp(key, "util")) d->util = n;
  else if (!strcmp(key, "temp")) d->temp = n;
  else if (!strcmp(key, "power")) d->power = n;
  else if (!strcmp(key, "limit")) d->limit = n;
  else if (!strcmp(key, "sm")) d->sm = n;
  else if (!strcmp(key, "mem")) d->mem = n;
  else if (!strcmp(key, "throttle")) d->throttle = n;
  else if (!strcmp(key, "ecc")) d->ecc = n;
  else if (!strcmp(key, "mig")) d->mig = n;
  else if (!strcmp(key, "virt")) d->virt = n;
}

static void read_line(world *w, char *line) {
  unsigned gpu, pid;
  int code, used = 0;
  u64 a, b;
  char key[64], text[128];
  line[strcspn(line, "\r\n")] = 0;
  if (sscanf(line, "driver %79s", text) == 1) snprintf(w->driver, sizeof w->driver, "%s", text);
  else if (sscanf(line, "init %d", &code) == 1) w->init = code;
  else if (sscanf(line, "count %d", &code) == 1) w->count = code;
  else if (sscanf(line, "stall %lf", &w->stall) == 1) return;
  else if (sscanf(line, "xid %u %d", &gpu, &code) == 2 && w->xids < MOST_ROWS) {
    w->xid[w->xids].device = gpu;
    w->xid[w->xids++].code = code;
  } else if (sscanf(line, "gpu %u %63s %n", &gpu, key, &used) == 2 && gpu < MOST_DEVICES) {
    if ((int)gpu >= w->count) w->count = gpu + 1;
    set_key(&w->devices[gpu], key, line + used);
  } else if (sscanf(line, "fail %u %63s %d", &gpu, key, &code) == 3 && w->failures < MOST_ROWS) {
    failure *f = &w->failure[w->failures++];
    f->device = gpu; f->code = code;
    snprintf(f->name, sizeof f->name, "%s", key);
  } else if (sscanf(line, "row %u %u %llu", &gpu, &pid, &a) == 3) add_row(w, gpu, pid, a, 0);
  else if (sscanf(line, "mig %u %llu %llu", &gpu, &a, &b) == 3 && gpu < MOST_DEVICES) {
    device *d = &w->devices[gpu];
    if (d->migs < MOST_MIG) { d->mig_total[d->migs] = a * MIB; d->mig_used[d->migs++] = b * MIB; }
  } else if (sscanf(line, "%15s %u %u %63s", key, &gpu, &pid, text) == 4) {
    u64 bytes = !strcmp(text, "na") ? UNSET : strtoull(text, NULL, 0) * MIB;
    if (!strcmp(key, "keep") || (!strcmp(key, "hold") && lives(pid))) add_row(w, gpu, pid, bytes, 0);
    else if (!strcmp(key, "draw")) add_row(w, gpu, pid, bytes, 1);
  }
}

static world *look(void) {
  const char *path = getenv("KVCTL_STANDIN_NVML");
  char line[512];
  set_defaults(&now);
  FILE *file = path ? fopen(path, "r") : NULL;
  if (file) {
    while (fgets(line, sizeof line, file)) read_line(&now, line);
    fclose(file);
  }
  if (now.count > MOST_DEVICES) now.count = MOST_DEVICES;
  return &now;
}

/* Look at the world and return the failure that a call on this device is to answer. */
static int ask(handle h, const char *name) {
  world *w = look();
  if (w->stall > 0) {
    struct timespec wait = {(time_t)w->stall, (long)((w->stall - (time_t)w->stall) * 1e9)};
    nanosleep(&wait, NULL);
  }
  for (int i = 0; i < w->failures; i++) {
    failure *f = &w->failure[i];
    int is_all = !strcmp(f->name, "*") && strcmp(name, "Handle");
    if (f->device == (int)h->device && (is_all || !strcmp(f->name, name))) return f->code;
  }
  return OK;
}
#define ASK(h, name) do { int code = ask(h, name); if (code) return code; } while (0)
#define DEVICE(h) (&now.devices[(h)->device])

static u64 held(handle h) {
  u64 sum = 0;
  for (int i = 0; i < now.rows; i++)
    if (now.row[i].device == h->device && now.row[i].bytes != UNSET) sum += now.row[i].bytes;
  return sum;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return look()->init; }
int nvmlInit_v2(void) { return look()->init; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) {
  static _Thread_local char text[64];
  snprintf(text, sizeof text, "stand-in error %d", code);
  return text;
}
int nvmlSystemGetDriverVersion(char *to, unsigned size) {
  snprintf(to, size, "%s", look()->driver);
  return OK;
}
int nvmlSystemGetNVMLVersion(char *to, unsigned size) {
  snprintf(to, size, "12.%s", look()->driver);
  return OK;
}
int nvmlSystemGetCudaDriverVersion(int *to) { *to = 12080; return OK; }
int nvmlSystemGetCudaDriverVersion_v2(int *to) { *to = 12080; return OK; }

int nvmlDeviceGetCount_v2(unsigned *to) { *to = look()->count; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle *to) {
  if ((int)index >= look()->count) return INVALID;
  slots[index] = (slot){index, -1};
  ASK(&slots[index], "Handle");
  *to = &slots[index];
  return OK;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, handle *to) {
  world *w = look();
  for (int i = 0; i < w->count; i++)
    if (!strcmp(uuid, w->devices[i].uuid)) return nvmlDeviceGetHandleByIndex_v2(i, to);
  return NOT_FOUND;
}
int nvmlDeviceGetIndex(handle h, unsigned *to) { ASK(h, "Index"); *to = h->device; return OK; }
int nvmlDeviceGetMinorNumber(handle h, unsigned *to) {
  ASK(h, "MinorNumber");
  *to = DEVICE(h)->minor;
  return OK;
}
int nvmlDeviceGetName(handle h, char *to, unsigned size) {
  ASK(h, "Name");
  if (h->mig >= 0) snprintf(to, size, "%s MIG 1g.10gb", DEVICE(h)->name);
  else snprintf(to, size, "%s", DEVICE(h)->name);
  return OK;
}
int nvmlDeviceGetUUID(handle h, char *to, unsigned size) {
  ASK(h, "UUID");
  if (h->mig >= 0) snprintf(to, size, "MIG-%u-%d", h->device, h->mig);
  else snprintf(to, size, "%s", DEVICE(h)->uuid);
  return OK;
}
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char text[32]; } pci;
int nvmlDeviceGetPciInfo_v3(handle h, pci *to) {
  ASK(h, "PciInfo");
  memset(to, 0, sizeof *to);
  snprintf(to->text, sizeof to->text, "%s", DEVICE(h)->bus);
  snprintf(to->legacy, sizeof to->legacy, "%.12s", DEVICE(h)->bus + 4);
  return OK;
}

typedef struct { u64 total, free, used; } memory;
typedef struct { unsigned version; u64 total, reserved, free, used; } memory_v2;
int nvmlDeviceGetMemoryInfo_v2(handle h, memory_v2 *to) {
  ASK(h, "MemoryInfo");
  device *d = DEVICE(h);
  to->total = h->mig >= 0 ? d->mig_total[h->mig] : d->total;
  to->used = h->mig >= 0 ? d->mig_used[h->mig] : d->used + held(h);
  to->reserved = h->mig >= 0 ? 0 : d->reserved;
  to->free = to->total - to->used - to->reserved;
  return OK;
}
int nvmlDeviceGetMemoryInfo(handle h, memory *to) {
  memory_v2 whole;
  int code = nvmlDeviceGetMemoryInfo_v2(h, &whole);
  if (code) return code;
  *to = (memory){whole.total, whole.free, whole.used + whole.reserved};
  return OK;
}
typedef struct { unsigned gpu, memory; } utilisation;
int nvmlDeviceGetUtilizationRates(handle h, utilisation *to) {
  ASK(h, "UtilizationRates");
  if (DEVICE(h)->mig) return NOT_SUPPORTED;
  *to = (utilisation){DEVICE(h)->util, DEVICE(h)->util / 2};
  return OK;
}
int nvmlDeviceGetTemperature(handle h, int sensor, unsigned *to) {
  (void)sensor;
  ASK(h, "Temperature");
  *to = DEVICE(h)->temp;
  return OK;
}
typedef struct { unsigned version; int sensor, temperature; } temperature;
int nvmlDeviceGetTemperatureV(handle h, temperature *to) {
  ASK(h, "Temperature");
  to->temperature = DEVICE(h)->temp;
  return OK;
}
int nvmlDeviceGetPowerUsage(handle h, unsigned *to) {
  ASK(h, "PowerUsage");
  *to = DEVICE(h)->power;
  return OK;
}
int nvmlDeviceGetEnforcedPowerLimit(handle h, unsigned *to) {
  ASK(h, "EnforcedPowerLimit");
  *to = DEVICE(h)->limit;
  return OK;
}
int nvmlDeviceGetPowerManagementLimit(handle h, unsigned *to) {
  ASK(h, "PowerManagementLimit");
  *to = DEVICE(h)->limit;
  return OK;
}
int nvmlDeviceGetClockInfo(handle h, int kind, unsigned *to) {
  ASK(h, "ClockInfo");
  *to = kind == 2 ? DEVICE(h)->mem : DEVICE(h)->sm;
  return OK;
}
int nvmlDeviceGetMaxClockInfo(handle h, int kind, unsigned *to) {
  ASK(h, "MaxClockInfo");
  *to = kind == 2 ? 3201 : 1980;
  return OK;
}
int nvmlDeviceGetCurrentClocksEventReasons(handle h, u64 *to) {
  ASK(h, "CurrentClocksEventReasons");
  *to = DEVICE(h)->throttle;
  return OK;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(handle h, u64 *to) {
  return nvmlDeviceGetCurrentClocksEventReasons(h, to);
}
int nvmlDeviceGetTotalEccErrors(handle h, int error, int counter, u64 *to) {
  (void)error; (void)counter;
  ASK(h, "TotalEccErrors");
  *to = DEVICE(h)->ecc;
  return OK;
}
int nvmlDeviceGetFanSpeed(handle h, unsigned *to) { (void)to; ASK(h, "FanSpeed"); return NOT_SUPPORTED; }
int nvmlDeviceGetPersistenceMode(handle h, int *to) { ASK(h, "PersistenceMode"); *to = 1; return OK; }
int nvmlDeviceGetDisplayActive(handle h, int *to) { ASK(h, "DisplayActive"); *to = 0; return OK; }
int nvmlDeviceGetComputeMode(handle h, int *to) { ASK(h, "ComputeMode"); *to = 0; return OK; }
int nvmlDeviceGetPerformanceState(handle h, int *to) { ASK(h, "PerformanceState"); *to = 0; return OK; }
int nvmlDeviceGetCudaComputeCapability(handle h, int *major, int *minor) {
  ASK(h, "CudaComputeCapability");
  *major = 9; *minor = 0;
  return OK;
}

int nvmlDeviceGetVirtualizationMode(handle h, int *to) {
  ASK(h, "VirtualizationMode");
  *to = DEVICE(h)->virt;
  return OK;
}

typedef struct { handle device; u64 type, data; unsigned instance, compute; } event;
static unsigned registered, told;
int nvmlEventSetCreate(void **to) { *to = &registered; return OK; }
int nvmlEventSetFree(void *set) { (void)set; registered = 0; return OK; }
int nvmlDeviceRegisterEvents(handle h, u64 types, void *set) {
  (void)types; (void)set;
  ASK(h, "RegisterEvents");
  registered |= 1u << h->device;
  return OK;
}
int nvmlEventSetWait_v2(void *set, event *to, unsigned timeout_ms) {
  (void)set; (void)timeout_ms;
  world *w = look();
  while (told < (unsigned)w->xids) {
    failure *x = &w->xid[told++];
    if (!(registered & (1u << x->device))) continue;
    *to = (event){&slots[x->device], 8, x->code, 0xffffffffu, 0xffffffffu};
    return OK;
  }
  return TIMEOUT;
}

int nvmlDeviceGetMigMode(handle h, unsigned *current, unsigned *pending) {
  ASK(h, "MigMode");
  *current = *pending = DEVICE(h)->mig;
  return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(handle h, unsigned *to) {
  ASK(h, "MaxMigDeviceCount");
  *to = DEVICE(h)->mig ? MOST_MIG : 0;
  return OK;
}
int nvmlDeviceGetMigDeviceHandleByIndex(handle h, unsigned index, handle *to) {
  ASK(h, "MigDeviceHandleByIndex");
  if (index >= (unsigned)DEVICE(h)->migs) return NOT_FOUND;
  mig_slots[h->device][index] = (slot){h->device, (int)index};
  *to = &mig_slots[h->device][index];
  return OK;
}
int nvmlDeviceGetGpuInstanceId(handle h, unsigned *to) {
  ASK(h, "GpuInstanceId");
  if (h->mig < 0) return NOT_SUPPORTED;
  *to = h->mig + 1;
  return OK;
}

typedef struct { unsigned pid; u64 bytes; unsigned instance, compute; } process;
static int list(handle h, int graphics, unsigned *count, process *to) {
  unsigned room = *count, found = 0;
  if (h->mig >= 0) { *count = 0; return OK; }
  for (int i = 0; i < now.rows; i++) {
    row *r = &now.row[i];
    if (r->device != h->device || r->graphics != graphics) continue;
    if (to && found < room) to[found] = (process){r->pid, r->bytes, 0xffffffffu, 0xffffffffu};
    found++;
  }
  *count = found;
  return found > room ? TOO_SMALL : OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(handle h, unsigned *count, process *to) {
  ASK(h, "ComputeRunningProcesses");
  return list(h, 0, count, to);
}
int nvmlDeviceGetComputeRunningProcesses_v2(handle h, unsigned *count, process *to) {
  return nvmlDeviceGetComputeRunningProcesses_v3(h, count, to);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(handle h, unsigned *count, process *to) {
  ASK(h, "GraphicsRunningProcesses");
  return list(h, 1, count, to);
}
int nvmlDeviceGetGraphicsRunningProcesses_v2(handle h, unsigned *count, process *to) {
  return nvmlDeviceGetGraphicsRunningProcesses_v3(h, count, to);
}
int nvmlDeviceGetMPSComputeRunningProcesses_v3(handle h, unsigned *count, process *to) {
  (void)to;
  ASK(h, "MPSComputeRunningProcesses");
  *count = 0;
  return OK;
}
