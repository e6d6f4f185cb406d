throw new Error('the module’s own trouble');
