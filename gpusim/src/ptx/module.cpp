#include "module.h"

#include "decoder.h"
#include "fatbinary.h"
#include "monitor.h"
#include "parser.h"

#include <cxxabi.h>

#include <cstdlib>
#include <cstring>

namespace gpusim
{

using namespace ptx;

namespace
{

std::vector<BarrierSite> &all_sites()
{
    static auto &sites = *new std::vector<BarrierSite>; // modules are loaded by static constructors, and never freed
    return sites;
}

void add_barrier_sites(Module *module, Function *function, const char *name)
{
    const std::vector<Token> &tokens = module->syntax.tokens;
    Location location;
    function->first_sync_site = static_cast<int>(all_sites().size());
    for (size_t i = function->body_begin; i < function->body_end; i++) {
        if (tokens[i].text == ".loc") {
            i = parse_location(tokens, i + 1, &location) - 1;
        } else if (is_sync_opcode(tokens[i].text)) {
            module->names.push_back(std::string(tokens[i].text));
            const char *what = module->names.back().c_str();
            const Site *site = site_of(module, name, *function, location, tokens[i].line, true);
            all_sites().push_back({name, what, site->file, site->line, 0});
        }
    }
}

void add_kernel(Module *module, Function *function)
{
    auto kernel = std::make_unique<Kernel>();
    kernel->module = module;
    kernel->function = function;
    kernel->name = readable_name(function->name);
    for (const Variable &variable : function->parameters) {
        size_t offset = (kernel->parameter_bytes + variable.align() - 1) / variable.align() * variable.align();
        kernel->offsets.push_back(offset);
        kernel->sizes.push_back(variable.bytes());
        kernel->parameter_bytes = offset + variable.bytes();
    }
    module->kernels[std::string(function->name)] = std::move(kernel);
}

void store_initial(Module *module, const Variable &variable, const Operand &operand, int device, unsigned char *at,
                   size_t *element)
{
    if (operand.kind == Operand::Kind::vector) {
        for (const Operand &part : operand.parts) {
            store_initial(module, variable, part, device, at, element);
        }
        return;
    }
    size_t bytes = bytes_of(variable.type);
    uint64_t bits = operand.bits;
    if (operand.kind == Operand::Kind::name) {
        bits = reinterpret_cast<uint64_t>(variable_address(module, operand.name, device)) +
               static_cast<uint64_t>(operand.offset);
    }
    if ((*element + 1) * bytes <= variable.bytes()) {
        memcpy(at + *element * bytes, &bits, bytes < sizeof bits ? bytes : sizeof bits);
    }
    (*element)++;
}

} // namespace

namespace ptx
{

std::string readable_name(std::string_view mangled)
{
    int status = 0;
    std::string name(mangled);
    char *readable = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
    if (readable) {
        name = readable;
        free(readable);
        if (name.substr(0, 5) == "void ") {
            name = name.substr(5);
        }
        int depth = 0;
        for (size_t i = 0; i < name.size(); i++) { // without the arguments
            bool anonymous = name.compare(i, 21, "(anonymous namespace)") == 0;
            depth += name[i] == '<';
            depth -= name[i] == '>';
            if (anonymous) {
                i += 20;
            } else if (name[i] == '(' && depth == 0) {
                name.resize(i);
            }
        }
    }
    return name;
}

const Site *site_of(Module *module, const char *kernel, const Function &function, const Location &location,
                    int ptx_line, bool warp_level)
{
    Location at = location;
    for (int depth = 0; depth < 32 && at.caller_file != 0; depth++) {
        bool own_file = at.file == function.main_file;
        if (own_file && !(warp_level && depth == 0)) {
            break;
        }
        auto caller = function.inlined.find({{at.caller_file, at.caller_line}, at.caller_column});
        Location next;
        next.file = at.caller_file;
        next.line = at.caller_line;
        at = caller == function.inlined.end() ? next : caller->second;
    }
    std::string file = module->syntax.files[at.file];
    file = file.substr(file.rfind('/') + 1);
    std::unique_ptr<Site> &site = module->sites[{kernel, file, at.line, ptx_line}];
    if (!site) {
        module->names.push_back(file);
        site = std::make_unique<Site>(Site{kernel, module->names.back().c_str(), at.line, ptx_line});
    }
    return site.get();
}

void *variable_address(Module *module, std::string_view name, int device)
{
    auto found = module->variables.find(name);
    if (found == module->variables.end()) {
        return nullptr;
    }
    void *&storage = found->second.storage[device];
    if (!storage) {
        const Variable &variable = *found->second.declaration;
        std::vector<unsigned char> image(variable.bytes());
        size_t element = 0;
        for (const Operand &operand : variable.initial) {
            store_initial(module, variable, operand, device, image.data(), &element);
        }
        storage = monitor_variable(device, image.size(), image.data());
    }
    return storage;
}

const Program &program_of(const Kernel *kernel)
{
    Kernel *mutable_kernel = const_cast<Kernel *>(kernel); // made once, under the scheduler's lock
    if (!mutable_kernel->program) {
        mutable_kernel->program = std::make_unique<Program>();
        mutable_kernel->program->name = kernel->name;
        Decoder(kernel->module, mutable_kernel->program.get()).decode(*kernel->function);
    }
    return *kernel->program;
}

} // namespace ptx

Module *module_load(const void *fatbin, int compute_capability, std::string *error)
{
    auto module = std::make_unique<Module>();
    module->syntax.text = fatbinary_ptx(fatbin, compute_capability, error);
    if (module->syntax.text.empty()) {
        return nullptr;
    }
    *error = parse_module(&module->syntax);
    if (!error->empty()) {
        return nullptr;
    }
    for (const Variable &variable : module->syntax.variables) {
        if (variable.space != Space::shared) {
            module->variables[variable.name].declaration = &variable;
        }
    }
    for (std::string_view name : module->syntax.function_order) {
        Function *function = &module->syntax.functions.find(name)->second;
        module->names.push_back(readable_name(name));
        add_barrier_sites(module.get(), function, module->names.back().c_str());
        if (function->is_entry) {
            add_kernel(module.get(), function);
        }
    }
    return module.release();
}

const Kernel *module_kernel(const Module *module, const char *name)
{
    auto found = module->kernels.find(std::string_view(name));
    return found == module->kernels.end() ? nullptr : found->second.get();
}

void *module_variable(Module *module, const char *name, int device, size_t *bytes)
{
    auto found = module->variables.find(name);
    if (found == module->variables.end()) {
        return nullptr;
    }
    *bytes = found->second.declaration->bytes();
    return variable_address(module, name, device);
}

const std::vector<size_t> &kernel_parameters(const Kernel *kernel)
{
    return kernel->sizes;
}

const std::vector<size_t> &kernel_parameter_offsets(const Kernel *kernel)
{
    return kernel->offsets;
}

size_t kernel_static_shared(const Kernel *kernel)
{
    return program_of(kernel).static_shared;
}

int kernel_max_threads(const Kernel *kernel)
{
    return kernel->function->max_threads;
}

const std::vector<BarrierSite> &barrier_sites()
{
    return all_sites();
}

namespace ptx
{

void count_sync_site(int site)
{
    all_sites()[static_cast<size_t>(site)].executed++;
}

} // namespace ptx

} // namespace gpusim
