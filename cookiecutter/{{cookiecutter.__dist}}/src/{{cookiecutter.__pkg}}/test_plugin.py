{% include cookiecutter.kind ~ '/tests.py' -%}
