"""
Stand-ins for the vendor's torch_gcu, for machines without a GCU: they compute on the CPU and raise the real one's errors.

t20/ and s60/ hold a package torch_gcu each; with one of them on PYTHONPATH a rank has cards of that generation. They are
written from the vendor's published sources, cited at each rule, and were not compared with hardware:

    TG1   torch_gcu 1.10.0 of TopsRider t2x, as installed (mango-MilkT/torch_gcu@14a9984)
    TG2   torch_gcu 2.10 of TopsRider i3x (sunnygui-L/torch-gcu@f17a922)
    MZ    the vendor's training scripts (EnflameTechnology/ModelZoo@53f1190)

Calls that the real ones accept and then do wrongly, such as a process group before set_device, raise ContractError.
They run on Python 3.8 and torch 1.10, and import nothing but torch and each other.
"""
