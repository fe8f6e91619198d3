// A call of a program from CPython: arrays of the types and shapes of the call before, in one step.
//
// aot/runtime/fast_calls.py makes a Call once a program has run and asks it first from then on.
// What it does not take, such as another shape, a list or a strided array, it leaves to the calls
// through ctypes.  It links no runtime: the functions' addresses are those that ctypes found.  Uses
// CPython's stable interface of 3.11.
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "aot/aot.h"

enum { MOST_DIMS = 64, MOST_FORMAT = 4 };

// What an array must be.
typedef struct {
  char format[MOST_FORMAT];  // of its elements, as struct's
  aot_tensor_t tensor;
  int64_t dims[MOST_DIMS];
} slot_t;

typedef struct {
  PyObject_HEAD aot_program_t *program;
  aot_error_t *error;
  aot_status_t (*set_input)(aot_program_t *, size_t, const aot_tensor_t *, aot_error_t *);
  aot_status_t (*set_output)(aot_program_t *, size_t, void *, size_t, aot_error_t *);
  aot_status_t (*run)(aot_program_t *, aot_error_t *);
  PyObject *array_type;  // numpy.ndarray
  PyObject *empty;       // numpy.empty
  PyObject *results;     // a tuple of (shape, dtype)
  PyObject *names;       // a tuple of the inputs' names
  PyObject *result_names;
  Py_ssize_t input_count;
  slot_t *inputs;
  Py_buffer *views;  // of the inputs, during a call
} call_t;

// Fills a slot from (format, dtype, shape, bytes).
static int read_slot(slot_t *slot, PyObject *item) {
  const char *format;
  int dtype;
  PyObject *shape;
  Py_ssize_t bytes;
  if (!PyArg_ParseTuple(item, "siOn", &format, &dtype, &shape, &bytes)) return -1;
  Py_ssize_t rank = PyTuple_Size(shape);
  if (rank < 0) return -1;
  if (rank > MOST_DIMS || strlen(format) >= MOST_FORMAT) {
    PyErr_SetString(PyExc_ValueError, "the array has too many dims, or elements of no simple type");
    return -1;
  }
  memcpy(slot->format, format, strlen(format) + 1);
  for (Py_ssize_t d = 0; d < rank; d++) {
    slot->dims[d] = PyLong_AsLongLong(PyTuple_GetItem(shape, d));
    if (slot->dims[d] == -1 && PyErr_Occurred() != NULL) return -1;
  }
  slot->tensor = (aot_tensor_t){.size = sizeof slot->tensor,
                                .dtype = (aot_dtype_t)dtype,
                                .rank = (uint32_t)rank,
                                .dims = slot->dims,
                                .bytes = (size_t)bytes};
  return 0;
}

// Makes the slots of a tuple of inputs.
static int make_slots(call_t *self, PyObject *inputs) {
  size_t count = (size_t)self->input_count + 1;  // of none there is memory, too
  self->inputs = PyMem_Calloc(count, sizeof *self->inputs);
  self->views = PyMem_Calloc(count, sizeof *self->views);
  if (self->inputs == NULL || self->views == NULL) {
    (void)PyErr_NoMemory();
    return -1;
  }
  for (Py_ssize_t n = 0; n < self->input_count; n++) {
    if (read_slot(&self->inputs[n], PyTuple_GetItem(inputs, n)) != 0) return -1;
  }
  return 0;
}

// Whether the array is what the slot says.
static int fits(const slot_t *slot, const Py_buffer *view) {
  if (view->format == NULL || strcmp(view->format, slot->format) != 0) return 0;
  if (view->ndim != (int)slot->tensor.rank || (size_t)view->len != slot->tensor.bytes) return 0;
  if ((uintptr_t)view->buf % (uintptr_t)view->itemsize != 0) return 0;
  for (int d = 0; d < view->ndim; d++) {
    if (view->shape[d] != slot->dims[d]) return 0;
  }
  return 1;
}

// Takes views of the arrays of a list; returns how many, fewer than there are where one is none
// that fits.
static Py_ssize_t take_views(call_t *self, PyObject *arrays) {
  for (Py_ssize_t n = 0; n < self->input_count; n++) {
    PyObject *array = PyList_GetItem(arrays, n);
    if (array == NULL || (PyObject *)Py_TYPE(array) != self->array_type) {
      PyErr_Clear();
      return n;
    }
    Py_buffer *view = &self->views[n];
    if (PyObject_GetBuffer(array, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
      PyErr_Clear();
      return n;
    }
    if (!fits(&self->inputs[n], view)) {
      PyBuffer_Release(view);
      return n;
    }
    self->inputs[n].tensor.data = view->buf;
  }
  return self->input_count;
}

// Returns a new result, set as the program's output, or NULL; *status is the runtime's.
static PyObject *bind_result(call_t *self, Py_ssize_t number, aot_status_t *status) {
  PyObject *kind = PyTuple_GetItem(self->results, number);
  PyObject *result = kind == NULL ? NULL : PyObject_CallObject(self->empty, kind);
  Py_buffer view;
  if (result == NULL) return NULL;
  if (PyObject_GetBuffer(result, &view, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS) != 0) {
    Py_DECREF(result);
    return NULL;
  }
  *status =
      self->set_output(self->program, (size_t)number, view.buf, (size_t)view.len, self->error);
  PyBuffer_Release(&view);  // the array keeps its memory
  return result;
}

// Runs the program on the inputs that views show: a list of results, the status of what failed, or
// None where numpy has no memory for a result.
static PyObject *run_program(call_t *self) {
  Py_ssize_t count = PyTuple_Size(self->results);
  PyObject *found = count < 0 ? NULL : PyList_New(count);
  if (found == NULL) return NULL;
  aot_status_t status = AOT_OK;
  for (Py_ssize_t n = 0; n < self->input_count && status == AOT_OK; n++) {
    status = self->set_input(self->program, (size_t)n, &self->inputs[n].tensor, self->error);
  }
  for (Py_ssize_t n = 0; n < count && status == AOT_OK; n++) {
    PyObject *result = bind_result(self, n, &status);
    if (result == NULL) {
      Py_DECREF(found);
      if (!PyErr_ExceptionMatches(PyExc_MemoryError)) return NULL;
      PyErr_Clear();
      Py_RETURN_NONE;
    }
    (void)PyList_SetItem(found, n, result);
  }
  if (status == AOT_OK) {
    Py_BEGIN_ALLOW_THREADS;
    status = self->run(self->program, self->error);
    Py_END_ALLOW_THREADS;
  }
  if (status == AOT_OK) return found;
  Py_DECREF(found);
  return PyLong_FromLong((long)status);
}

// Returns a new list of the arrays that a dict has by the inputs' names, or None if it has others.
static PyObject *list_named(call_t *self, PyObject *given) {
  if (PyDict_Size(given) != self->input_count) return Py_NewRef(Py_None);
  PyObject *arrays = PyList_New(self->input_count);
  for (Py_ssize_t n = 0; arrays != NULL && n < self->input_count; n++) {
    PyObject *array = PyDict_GetItemWithError(given, PyTuple_GetItem(self->names, n));
    if (array == NULL) {
      Py_DECREF(arrays);
      return PyErr_Occurred() == NULL ? Py_NewRef(Py_None) : NULL;
    }
    (void)PyList_SetItem(arrays, n, Py_NewRef(array));
  }
  return arrays;
}

// Returns a new dict of a list of results by their names; takes the list.
static PyObject *by_name(call_t *self, PyObject *found) {
  PyObject *results = PyDict_New();
  for (Py_ssize_t n = 0; results != NULL && n < PyList_Size(found); n++) {
    PyObject *name = PyTuple_GetItem(self->result_names, n);
    if (name == NULL || PyDict_SetItem(results, name, PyList_GetItem(found, n)) != 0) {
      Py_CLEAR(results);
    }
  }
  Py_DECREF(found);
  return results;
}

// run(arrays): the results, in a list for a list and by name for a dict; the number of a status
// that is no success; or None where an array is not as it was, or there is no memory for a result.
static PyObject *call_run(PyObject *object, PyObject *given) {
  call_t *self = (call_t *)object;
  int is_named = PyDict_CheckExact(given);
  PyObject *arrays = is_named ? list_named(self, given) : Py_NewRef(given);
  if (arrays == NULL || !PyList_Check(arrays) || PyList_Size(arrays) != self->input_count) {
    Py_XDECREF(arrays);
    if (PyErr_Occurred() != NULL) return NULL;
    Py_RETURN_NONE;
  }
  Py_ssize_t taken = take_views(self, arrays);
  PyObject *found = taken == self->input_count ? run_program(self) : Py_NewRef(Py_None);
  while (taken > 0)
    PyBuffer_Release(&self->views[--taken]);
  Py_DECREF(arrays);
  return is_named && found != NULL && PyList_Check(found) ? by_name(self, found) : found;
}

static void call_dealloc(PyObject *object) {
  call_t *self = (call_t *)object;
  PyTypeObject *type = Py_TYPE(object);
  PyMem_Free(self->inputs);
  PyMem_Free(self->views);
  Py_XDECREF(self->array_type);
  Py_XDECREF(self->empty);
  Py_XDECREF(self->results);
  Py_XDECREF(self->names);
  Py_XDECREF(self->result_names);
  freefunc release = __extension__(freefunc) PyType_GetSlot(type, Py_tp_free);
  release(object);
  Py_DECREF(type);
}

// Call((program, error, set_input, set_output, run), (ndarray, empty), inputs, results,
// (names, result_names))
static PyObject *call_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
  unsigned long long at[5];
  PyObject *array_type, *empty, *inputs, *results, *names, *result_names;
  PyTypeObject *tuple = &PyTuple_Type;
  if (kwargs != NULL || !PyArg_ParseTuple(args, "(KKKKK)(OO)O!O!(O!O!)", &at[0], &at[1], &at[2],
                                          &at[3], &at[4], &array_type, &empty, tuple, &inputs,
                                          tuple, &results, tuple, &names, tuple, &result_names)) {
    if (kwargs != NULL) PyErr_SetString(PyExc_TypeError, "Call takes no keywords");
    return NULL;
  }
  if (PyTuple_Size(names) != PyTuple_Size(inputs) ||
      PyTuple_Size(result_names) != PyTuple_Size(results)) {
    PyErr_SetString(PyExc_ValueError, "not as many names as arrays");
    return NULL;
  }
  allocfunc allocate = __extension__(allocfunc) PyType_GetSlot(type, Py_tp_alloc);
  call_t *self = (call_t *)allocate(type, 0);
  if (self == NULL) return NULL;
  self->program = (aot_program_t *)(uintptr_t)at[0];
  self->error = (aot_error_t *)(uintptr_t)at[1];
  memcpy(&self->set_input, &(uintptr_t){(uintptr_t)at[2]}, sizeof self->set_input);
  memcpy(&self->set_output, &(uintptr_t){(uintptr_t)at[3]}, sizeof self->set_output);
  memcpy(&self->run, &(uintptr_t){(uintptr_t)at[4]}, sizeof self->run);
  self->array_type = Py_NewRef(array_type);
  self->empty = Py_NewRef(empty);
  self->results = Py_NewRef(results);
  self->names = Py_NewRef(names);
  self->result_names = Py_NewRef(result_names);
  self->input_count = PyTuple_Size(inputs);
  if (make_slots(self, inputs) == 0) return (PyObject *)self;
  Py_DECREF(self);
  return NULL;
}

static PyMethodDef methods[] = {
    {"run", call_run, METH_O, "Runs the program on a list of arrays."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, __extension__(void *) call_new},
    {Py_tp_dealloc, __extension__(void *) call_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "_aot_call.Call",
    .basicsize = sizeof(call_t),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "_aot_call", .m_size = -1,
                                    .m_methods = NULL};

PyMODINIT_FUNC PyInit__aot_call(void);

PyMODINIT_FUNC PyInit__aot_call(void) {
  PyObject *made = PyModule_Create(&module);
  PyObject *type = made == NULL ? NULL : PyType_FromSpec(&spec);
  if (type != NULL && PyModule_AddObjectRef(made, "Call", type) == 0) {
    Py_DECREF(type);
    return made;
  }
  Py_XDECREF(type);
  Py_XDECREF(made);
  return NULL;
}
